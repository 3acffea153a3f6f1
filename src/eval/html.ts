/** HTML reports: self-contained pages, light or dark by the reader's setting, and tables. */
import { escapeHtml } from './plot.ts';

export function htmlPage(title: string, body: readonly string[]): string {
  return [
    '<!doctype html>',
    `<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">`,
    `<title>${escapeHtml(title)}</title><style>${STYLE}</style></head><body>`,
    ...body,
    '</body></html>',
    '',
  ].join('\n');
}

const STYLE = [
  'body{font:15px/1.5 ui-sans-serif,system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}',
  'table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15rem .7rem;text-align:right}',
  'td:first-child,th:first-child{text-align:left}tr+tr{border-top:1px solid #8884}svg{width:100%;height:auto}',
  'h3{margin-bottom:.2rem}',
  '@media(prefers-color-scheme:dark){body{color:#e4e4e4;background:#161616}svg text{fill:#e4e4e4}}',
].join('');

const cell = (value: string, tag = 'td') => `<${tag}>${escapeHtml(value)}</${tag}>`;

export const htmlTable = (header: readonly string[], lines: readonly (readonly string[])[]): string =>
  [
    `<table><thead><tr>${header.map(name => cell(name, 'th')).join('')}</tr></thead><tbody>`,
    ...lines.map(line => `<tr>${line.map(value => cell(value)).join('')}</tr>`),
    '</tbody></table>',
  ].join('\n');
