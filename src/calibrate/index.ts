/** Calibration: `kvasir/calibrate`. Node only. */
export {
  type CalibrateOptions,
  type CalibrationProgress,
  type CalibrationResult,
  type CalibrationStage,
  type CalibrationWork,
  calibrate,
} from './calibrate.ts';
export type { CalibrationDataOptions, CalibrationText } from './job.ts';
