/** The document that comes with the app: ten pages of stories, and questions on facts in them. */
export interface Sample {
  name: string;
  text: string;
  questions: readonly string[];
}

const FILE = './sample.txt';
/** The first line of the file is a question too. */
const QUESTIONS = [
  'Who got the golden candle from Carl?',
  'What is the door code of the hidden mill?',
  'Where does Conrad keep the rusty book?',
  'Where does Conrad keep the woven book?',
  'Where does Conrad keep the woven flute?',
];

export async function loadSample(): Promise<Sample> {
  const [question = '', , ...lines] = (await (await fetch(FILE)).text()).split('\n');
  return { name: 'sample.txt', text: lines.join('\n'), questions: [question, ...QUESTIONS] };
}
