/** `runWorker` of `kvasir/worker` takes its place; it works for one more release, without a notice. */
import '../worker/engine-worker.ts';
