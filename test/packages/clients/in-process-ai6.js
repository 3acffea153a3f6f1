import * as sdk from 'ai6';
import { checkInProcess } from './in-process-checks.js';

await checkInProcess(sdk);
