/** Grammars of answers in channels (model/channels.ts): analysis as free text, then the final message, or a call. */
import { choice, type Expression, marker, optional, sequence, text } from '../engine/grammar/expression.ts';
import { CHANNEL, CONSTRAIN, END, MESSAGE, START } from '../model/channels.ts';

const analysis = sequence(
  ...[marker(CHANNEL), text('analysis'), marker(MESSAGE), { kind: 'until', marker: END } as const],
  ...[marker(START), text('assistant')],
);

/** The last message of an answer, after analysis, if there is any. */
export const afterAnalysis = (message: Expression): Expression => sequence(optional(analysis), message);

export const finalMessage = (content: Expression): Expression =>
  sequence(
    ...[marker(CHANNEL), text('final')],
    ...[optional(sequence(text(' '), marker(CONSTRAIN), text('json'))), marker(MESSAGE), content],
  );

export const callMessage = (name: string, content: Expression): Expression =>
  sequence(
    ...[marker(CHANNEL), choice(text('commentary'), text('analysis')), text(` to=functions.${name} `)],
    ...[optional(marker(CONSTRAIN)), text('json'), marker(MESSAGE), content],
  );
