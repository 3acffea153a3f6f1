// docs/api.md, from the doc comments of what the entry points of package.json export. Writes the page; with --check it
// fails if the page is out of date.
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import {
  isFunctionDeclaration,
  isIdentifier,
  isTypeAliasDeclaration,
  isTypeLiteralNode,
  isVariableDeclaration,
} from 'typescript/unstable/ast';
import { API, SymbolFlags } from 'typescript/unstable/sync';

const INTRO = `# API

<!-- Written by \`npm run docs\` from the doc comments of the sources. Do not edit. -->

Every name that the package exports, by entry point: functions with their signatures, then types with one line per
option or member. How they are used, with examples: [library](library.md). Unknown options are errors. Words are
explained in the [glossary](concepts.md#glossary). Models, conversations, streams and caches work with \`await using\`.
`;

const root = fileURLToPath(new URL('..', import.meta.url));
const page = `${root}docs/api.md`;
const api = new API({ cwd: root });
const [{ checker, program }] = api.updateSnapshot({ openProject: `${root}tsconfig.json` }).getProjects();

const code = text => `\`${text}\``;
const oneLine = text => text.replace(/\s+/g, ' ').trim();
const docOf = symbol => checker.getDocumentationCommentOfSymbol(symbol).trim();
const afterColon = doc => (doc ? `: ${oneLine(doc)}` : '');

/** The text of a type or member in one line, without comments. */
const textOf = node =>
  oneLine(node.getText().replace(/\/\*[\s\S]*?\*\//g, ''))
    .replace(/^readonly |^\| |;$/g, '')
    .replaceAll('; }', ' }')
    .replaceAll('( ', '(')
    .replaceAll(', )', ')');

/** A destructured parameter has no name of its own: these are all options. */
function signature(declaration) {
  const parameters = declaration.parameters.map(({ name, questionToken, initializer, type }) => {
    const label = isIdentifier(name) ? name.text : 'options';
    const optional = questionToken || initializer ? '?' : '';
    return `${label}${optional}: ${type ? textOf(type) : checker.typeToString(checker.getTypeAtLocation(name))}`;
  });
  const { type } = declaration;
  const result = checker.getReturnTypeOfSignature(checker.getSignatureFromDeclaration(declaration));
  return `(${parameters.join(', ')}): ${type ? textOf(type) : checker.typeToString(result)}`;
}

/** One line per member; neighbours without a comment share one. */
function listMembers(members) {
  const lines = [];
  let isBare = false;
  for (const member of members) {
    if (!member.name || !isIdentifier(member.name) || /^(static|private)\b/.test(member.getText())) continue;
    const doc = docOf(checker.getSymbolAtLocation(member.name));
    const text = code(member.body ? member.name.text + signature(member) : textOf(member));
    if (isBare && !doc) lines[lines.length - 1] += `, ${text}`;
    else lines.push(`  - ${text}${afterColon(doc)}`);
    isBare = !doc;
  }
  return lines;
}

function describeType(name, declaration, doc) {
  const isAlias = isTypeAliasDeclaration(declaration);
  const shape = !isAlias ? declaration : isTypeLiteralNode(declaration.type) ? declaration.type : undefined;
  const bases = isAlias ? [] : (declaration.heritageClauses ?? []).flatMap(({ types }) => types.map(textOf));
  const extended = bases.length > 0 ? ` extends ${bases.map(code).join(', ')}` : '';
  const alias = shape ? '' : ` = ${code(textOf(declaration.type))}`;
  return [`- **${code(name)}**${extended}${alias}${afterColon(doc)}`, ...listMembers(shape?.members ?? [])];
}

/** Where each name was described first: entry points may share names. */
const places = new Map();

function describeModule(module, source) {
  const [functions, types, shared] = [[], [], new Map()];
  const symbol = checker.getSymbolAtLocation(source); // none if it exports nothing
  for (const exported of symbol ? checker.getExportsOfModule(symbol) : []) {
    const { name } = exported;
    const target = exported.flags & SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported;
    const place = places.get(target.id);
    if (place) {
      shared.set(place, [...(shared.get(place) ?? []), code(name)]);
      continue;
    }
    places.set(target.id, module);
    const declaration = target.declarations[0].resolve();
    const doc = docOf(target);
    if (isFunctionDeclaration(declaration))
      functions.push(`### ${name}`, '', `${code(name + signature(declaration))}${afterColon(doc)}`, '');
    else if (isVariableDeclaration(declaration))
      types.push(`- ${code(`${name}: ${checker.typeToString(checker.getTypeOfSymbol(target))}`)}${afterColon(doc)}`);
    else types.push(...describeType(name, declaration, doc));
  }
  const comment = source.text.match(/^\/\*\*([\s\S]*?)\*\//)?.[1] ?? '';
  const intro = oneLine(comment.replace(/^\s*\*/gm, ''));
  // An entry point without names of its own is an old name of another.
  const isOldName = functions.length + types.length === 0;
  const others = [...shared].map(([place, names]) => {
    const link = `[${code(place)}](#${place.replace('/', '')})`;
    return isOldName ? `An old name of ${link}, for one more release.` : `Also ${names.join(', ')}, as in ${link}.`;
  });
  const title = `### Types of ${module}`;
  const blocks = [
    `## ${module}`,
    intro,
    ...others,
    functions.join('\n').trim(),
    types.length > 0 ? title : '',
    types.join('\n'),
  ];
  return blocks.filter(block => block !== '').join('\n\n');
}

const { exports } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'));
const modules = Object.entries(exports).map(([path, { types }]) => {
  const source = types.replace('./dist/', 'src/').replace('.d.ts', '.ts');
  return describeModule(`kvasir${path.slice(1)}`, program.getSourceFile(root + source));
});
const text = `${INTRO}\n${modules.join('\n\n')}\n`;
api.close();

if (!process.argv.includes('--check')) writeFileSync(page, text);
else if (readFileSync(page, 'utf8') !== text) {
  console.log('docs/api.md is not up to date: run `npm run docs`.');
  process.exitCode = 1;
}
