// #region webpack
// webpack.config.js
const { IgnorePlugin } = require('webpack');

/** Packages that Nest and nestjs-serving load only if they are used. Leave out those you use. */
const unused = [
  '@grpc/grpc-js',
  '@nestjs/cache-manager',
  '@nestjs/microservices',
  '@nestjs/websockets',
];

module.exports = (options) => ({
  ...options,
  entry: {
    main: options.entry,
    'serving.thread': 'nestjs-serving/thread',
    'serving.process': 'nestjs-serving/process',
  },
  output: { ...options.output, filename: '[name].js' },
  externals: { 'onnxruntime-node': 'commonjs onnxruntime-node', koffi: 'commonjs koffi' },
  plugins: [
    ...options.plugins,
    new IgnorePlugin({ checkResource: (name) => unused.some((each) => name.startsWith(each)) }),
  ],
});
// #endregion
