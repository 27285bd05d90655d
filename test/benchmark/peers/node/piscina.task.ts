import { openModel } from './model.js';

export default await openModel();
