/**
 * Milliseconds of CPU time that this process has used: limits on what a computation may cost hold on a busy machine too,
 * where the clock also counts the turns of other processes.
 */
export function cpuTime(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
