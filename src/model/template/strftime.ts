/** strftime for templates. Names are always English: a prompt must not depend on the machine's locale. */
const MONTHS = 'January February March April May June July August September October November December'.split(' ');
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');

export function strftime(date: Date, format: string): string {
  const two = (n: number) => String(n).padStart(2, '0');
  const month = MONTHS[date.getMonth()];
  const day = DAYS[date.getDay()];
  const parts: Record<string, string> = {
    Y: String(date.getFullYear()),
    y: two(date.getFullYear() % 100),
    m: two(date.getMonth() + 1),
    d: two(date.getDate()),
    B: month,
    b: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    H: two(date.getHours()),
    M: two(date.getMinutes()),
    S: two(date.getSeconds()),
    '%': '%',
  };
  return format.replace(/%([a-zA-Z%])/g, (all, letter: string) => parts[letter] ?? all);
}
