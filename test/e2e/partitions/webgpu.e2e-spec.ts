import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { forkChild } from '../../fixtures/partitions/fork-child.js';

const model = fileURLToPath(
  new URL('../../../sample/01-digits/model/digits.onnx', import.meta.url),
);

/** SwiftShader from Debian's package `chromium`: a Vulkan driver that needs no GPU. */
const swiftShader = '/usr/lib/chromium/vk_swiftshader_icd.json';
const driver = existsSync(swiftShader)
  ? { VK_DRIVER_FILES: swiftShader, VK_ICD_FILENAMES: swiftShader }
  : {};

const probe = await forkChild('webgpu-probe', [model], driver);
const missing =
  probe.code === 0
    ? undefined
    : 'onnxruntime finds no WebGPU device; install a GPU driver, or SwiftShader: apt install chromium libvulkan1';

describeUnless(missing, 'WebGPU', () => {
  it('[5.7] [5.1] Several sessions on WebGPU serve a model at once with the numbers of the CPU, and end cleanly', async () => {
    const end = await forkChild('webgpu', [model], driver);

    expect(end).toMatchObject({ code: 0, signal: null });
    expect(end.messages).toEqual([
      { partitions: [0, 1], compared: 2 * 40 * 10, difference: expect.any(Number) },
    ]);
    expect((end.messages[0] as { difference: number }).difference).toBeLessThan(1e-5);
  });

  it('[5.7] [5.6] Many WebGPU sessions that have run can end at once and repeatedly', async () => {
    const end = await forkChild('webgpu-ends', [model], driver);

    expect(end).toMatchObject({ code: 0, signal: null, messages: [{ answered: 2 * 16 }] });
  });
});
