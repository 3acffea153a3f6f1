import * as sdk from 'ai';
import { checkInProcess } from './in-process-checks.js';

await checkInProcess(sdk);
