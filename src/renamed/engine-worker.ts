/** `runWorker` of `kvasir/worker` takes its place. No notice: a Worker's console is not where one is read. */
import '../worker/engine-worker.ts';
