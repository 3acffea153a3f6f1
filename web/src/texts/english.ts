/** Every text of the app in English. A translation is a file like this one (docs/web.md). */
import { formatBytes, formatCount, formatRate, formatSeconds, formatSmall } from '../format.ts';

export type Texts = typeof english;

const plural = (count: number, one: string, many: string): string =>
  `${formatCount(count)} ${count === 1 ? one : many}`;
const tokens = (count: number): string => plural(count, 'token', 'tokens');
const rate = (tokensPerSecond: number): string => `${formatRate(tokensPerSecond)} tokens/s`;

/** Text in [brackets] stands out, or is a key of the keyboard. */
export const english = {
  tokens,
  rate,
  copy: 'Copy',
  copied: 'Copied',
  close: 'Close',
  cancel: 'Cancel',
  untitled: 'Untitled',

  app: {
    name: 'Kvasir',
    title: (conversation: string) => `${conversation} – Kvasir`,
    conversations: 'Conversations',
    saved: 'Saved conversations',
    details: 'Cache and model',
    compare: 'Compare codecs',
    noServer: 'No server',
    noModel: 'No model',
    connecting: 'Connecting',
    waiting: (what: string) => `${what}…`,
    progress: (what: string, done: number, total: number, seconds: number | undefined) =>
      `${what}: ${formatBytes(done)} of ${formatBytes(total)}${seconds === undefined ? '' : `, ${formatSeconds(seconds)} left`}`,
    updated: 'This part of the page cannot be loaded: the page was updated, or there is no network. Reload it.',
    reload: 'Reload',
    drop: 'Drop a document to ask about it, or a .gguf file to use it as the model',
  },

  sidebar: {
    startNew: 'New conversation',
    search: 'Search conversations',
    empty: 'Conversations are saved in this browser.',
    noneFound: 'None has these words.',
    transfer: 'Export and import',
    shortcuts: 'Shortcuts',
    titleField: 'Title',
    rename: (title: string) => `Rename ${title}`,
    delete: (title: string) => `Delete ${title}`,
    theme: 'Theme',
    themes: { auto: 'Auto', light: 'Light', dark: 'Dark' },
  },

  shortcuts: {
    title: 'Keyboard shortcuts',
    keys: { enter: 'Enter', shift: 'Shift', escape: 'Escape', ctrl: 'Ctrl' },
    inEmptyMessage: 'in an empty message',
    send: 'send the message',
    newLine: 'start a new line',
    stop: 'stop the answer',
    editLast: 'edit the last question',
    startNew: 'start a new conversation',
    search: 'search conversations',
    write: 'write a message',
    list: 'show this list',
  },

  deletion: {
    question: (what: string) => `Delete ${what}?`,
    conversation: (title: string) => `Delete “${title}”?`,
    isFinal: 'This cannot be undone.',
    confirm: 'Delete',
  },

  conversations: {
    deleted: 'Conversation deleted.',
    undo: 'Undo',
    allDeleted: 'All is deleted',
    forked: 'Conversation forked',
    forkTitle: (title: string) => `${title} (fork)`,
    notRead: (reason: string) => `What is saved could not be read: ${reason}`,
    notSaved: (reason: string) => `The conversation could not be saved: ${reason}`,
    unfinishedNotSaved: (reason: string) => `What is not finished could not be saved: ${reason}`,
    cacheNotSaved: (reason: string) => `The cache could not be saved: ${reason}`,
    storageFull: 'the storage of this browser is full. Delete conversations or models that are not needed.',
    onlyHere: 'Not saved: it is only in this tab, and gone when the tab is closed.',
    saveAgain: 'Save again',
  },

  transfer: {
    title: 'Export and import',
    about:
      'JSON has everything: documents, and earlier versions. It can be imported in another browser. Markdown is for reading.',
    asMarkdown: 'This conversation as Markdown',
    asJson: 'This conversation as JSON',
    allAsJson: 'All conversations as JSON',
    importJson: 'Import JSON',
    fileName: 'conversation',
    allFileName: 'conversations',
    question: 'Question',
    answer: 'Answer',
    withDocument: (name: string) => `With the document ${name}`,
    imported: (added: number, known: number, unsaved: number) =>
      `${[
        `${formatCount(added)} imported`,
        ...(known > 0 ? [`${formatCount(known)} already here`] : []),
        ...(unsaved > 0 ? [`${formatCount(unsaved)} could not be saved: only this tab has them`] : []),
      ].join(', ')}.`,
    notImported: (file: string, reason: string) => `${file} cannot be imported: ${reason}`,
    notJson: 'it is not JSON.',
    notOurs: 'it has no conversations of this app.',
    otherVersion: (found: unknown, read: number) => `it has version ${found}; this app reads version ${read}.`,
    damaged: 'a conversation in it is damaged.',
  },

  welcome: {
    title: 'What would you like to read?',
    about: (model: string | undefined) =>
      `Drop a long document and ask about it. ${model ?? 'The model'} keeps what it has read in a packed cache, so the next question is answered at once.`,
    tryDocument: 'Try a document',
    aboutDocument: 'Ten pages of stories, and a question on a fact in them',
    tellStory: 'Tell a story',
    aboutStory: 'About a lost teapot',
    /** What Mimir is asked, which knows only English. */
    story: 'Tell me a story about a lost teapot.',
    aboutMimir:
      'Mimir is very small: it finds facts in stories such as those of the sample, and tells little stories. It knows nothing of the world.',
    chooseModel: 'Choose a larger model',
    models: 'Models for this browser',
  },

  composer: {
    label: 'Message',
    ask: 'Ask, or drop a document…',
    reply: 'Reply…',
    addDocument: 'Add a document',
    help: '[Enter] sends, [Shift] [Enter] starts a line, [Esc] stops',
    send: 'Send',
    stop: 'Stop',
    tooLong: (missing: number, context: number) =>
      `This is ${tokens(missing)} more than the context of ${tokens(context)}.`,
  },

  documents: {
    added: (name: string) => `${name} added`,
    reading: (name: string) => `Reading ${name}`,
    remove: (name: string) => `Remove ${name}`,
    isModel: (name: string) => `${name} is a model. Open it under “Runs on”, in this browser.`,
    tooLarge: (name: string, bytes: number, max: number) =>
      `${name} is too large (${formatBytes(bytes)}); at most ${formatBytes(max)}.`,
    unreadable: (name: string) => `${name} cannot be read. Choose it again.`,
    scanned: (name: string) =>
      `${name} has no text: it seems to be scanned. Convert it with a program that recognizes text (OCR).`,
    empty: (name: string) => `${name} is empty.`,
    notText: (name: string) => `${name} is not a text file, nor a PDF or Word document (.docx).`,
    encrypted: (name: string) => `${name} is encrypted. Save it without a password, then add it again.`,
    notPdf: (name: string) => `${name} is damaged, or no PDF document.`,
    notWord: (name: string) => `${name} is damaged, or no Word document.`,
    needsNetwork: (name: string) => `${name} cannot be read without a network. Try again later.`,
  },

  messages: {
    conversation: 'Conversation',
    toEnd: 'Jump to the end',
    you: 'You',
    answer: 'Answer',
    edit: 'Edit',
    editor: 'Edit message',
    earlierKept: 'The earlier version is kept.',
    askAgain: 'Ask again',
    reasoning: 'Reasoning',
    answerAgain: 'Answer again',
    fork: 'Fork here',
    previousVersion: 'Previous version',
    nextVersion: 'Next version',
    versionOf: (version: number, count: number) => `Version ${version} of ${count}`,
    /** Instead of the language of a block of code. */
    code: 'code',
    copyCode: 'Copy code',
    notAnswered: 'Not answered yet.',
    giveAnswer: 'Answer',
    goOn: 'Go on',
    pageLeft: 'The page was left before this answer was complete.',
    cutOff: 'Cut off: the maximum length is reached, or the context is full.',
    repeated: 'Stopped: the answer repeated itself.',
    stopped: 'Stopped.',
    /** In the line below an answer. */
    finish: { stop: '', cancelled: 'stopped', length: 'cut off', loop: 'repeated itself' },
    reused: (count: number) => `${formatCount(count)} reused`,
    reading: 'Reading',
    readingOf: (done: number, total: number) => `Reading ${formatCount(done)} of ${tokens(total)}`,
    readingPrompt: 'Reading the prompt',
    left: (seconds: number) => `${formatSeconds(seconds)} left`,
    /** For screen readers. */
    answering: 'Answering',
    stoppedNow: 'Stopped',
    answerIs: (text: string) => `Answer: ${text}`,
    tooMany: (count: number) =>
      `${plural(count, 'answer is', 'answers are')} being made, as many as run at a time. Wait for one, or stop it.`,
    otherTab: 'Another tab answers in this conversation. Wait until it is done, then ask again.',
    recovered: 'An answer that another tab had begun was saved here. Look at it, then ask again.',
    /** Why nothing can be asked. */
    noEngine: 'No model is ready.',
    full: 'There is no room left for an answer: the conversation and its documents fill the context of the model.',
    continueElsewhere: 'Continue in a new conversation',
    leaveOut: 'Leave out the oldest messages',
    leftOut: 'The messages above are left out: the model no longer reads them.',
  },

  answers: {
    title: 'Answers',
    style: 'Style',
    styles: { exact: 'Exact', balanced: 'Balanced', varied: 'Varied' },
    ownStyle: 'Your own',
    temperature: 'Temperature',
    zeroTemperature: '0: always the likeliest word',
    maxLength: 'Maximum length',
    thinks: 'Thinks before it answers',
    thinking: { asModel: 'As the model does', yes: 'Yes', no: 'No' },
    asContext: 'As long as the context',
    more: 'More',
    system: 'System prompt',
    aboutSystem: 'What the model is told before each conversation',
    topP: 'Top-p',
    allWords: '1: all words',
    penalty: 'Repetition penalty',
    noPenalty: '1: none',
    seed: 'Seed',
    noSeed: 'Another one each time',
  },

  cache: {
    title: 'Cache',
    used: (used: number, context: number) => `[${formatCount(used)}] of ${tokens(context)}`,
    left: (count: number) => `${tokens(count)} still ${count === 1 ? 'fits' : 'fit'}`,
    smaller: (times: number) => `${times.toFixed(1)} times smaller than a 16-bit cache`,
    ofAll: (used: number, capacity: number) => `All conversations: ${formatBytes(used)} of ${formatBytes(capacity)}`,
  },

  page: {
    title: 'A page in bytes',
    about: (count: number, codec: string, bytes: number) =>
      `${tokens(count)} of the first layer with ${codec}: ${formatBytes(bytes)}.`,
    sides: { keys: 'keys', values: 'values' },
  },

  speed: {
    title: 'Speed',
    lastPrompt: (read: number, seconds: number, reused: number) =>
      `Last prompt: ${tokens(read)} read in ${seconds.toFixed(1)} s${reused > 0 ? `, ${formatCount(reused)} reused` : ''}`,
  },

  model: {
    title: 'Model and device',
    name: 'Name',
    device: 'Device',
    gpu: 'GPU (WebGPU)',
    cpu: (backend: string, threads: number) => `CPU (${backend}), ${plural(threads, 'thread', 'threads')}`,
    codec: 'Cache codec',
    bitsPerValue: (codec: string, bits: number) => `${codec}, ${bits.toFixed(2)} bits per value`,
    divergence: 'Divergence',
    expected: (nats: number) => `${formatSmall(nats)} nats per token, expected`,
  },

  engine: {
    title: 'Runs on',
    server: 'This server',
    cpu: 'This browser, on the CPU',
    gpu: 'This browser, on the GPU',
    hubModels: 'Models from the hub',
    model: 'Model:',
    untilLeft: 'Open until the page is left.',
    keep: (bytes: number) => `Keep it in this browser (${formatBytes(bytes)})`,
    openFile: 'Open a .gguf file',
    mimir: 'Mimir',
    pause: 'Pause',
    untilThere: (model: string) => `Until it is here, ${model} answers.`,
    cache: 'Cache',
    name: 'Name',
    bits: 'Bits',
    recall: 'Recall',
    agreement: 'As f16',
    bitsOf: (bits: number) => `${bits} bits`,
    aboutRecall: 'Recall: facts that Mimir finds in documents of 6,000 tokens. Bits: per number in the cache.',
    aboutAgreement:
      'As f16: how often the likeliest next token is the same. Measured with SmolLM2-135M on six kinds of text; your model may differ.',
    hasProfile: 'The profile of this model is used.',
    noProfile: 'With a profile of this model (kvasir calibrate), mead2 and plans of 3 and 2 bits are here too.',
    chooseProfile: 'Choose a .kvprofile file',
  },

  models: {
    goodAt: {
      smollm2: 'Short texts; the fastest.',
      gemma3: 'Many languages, long texts in little memory.',
      qwenCoder: 'Code and questions.',
    },
    gemmaTerms: 'Gemma terms',
    /** Sizes of a model, and of a full cache. */
    about: (bytes: number, license: string, context: number, packedBytes: number, f16Bytes: number) =>
      `${formatBytes(bytes)}, ${license}. ${tokens(context)} take ${formatBytes(packedBytes)} packed, ${formatBytes(f16Bytes)} in f16.`,
    bothFit: 'Both fit here.',
    onlyPackedFits: 'Only packed they fit here.',
    noneFits: 'More than this device may have.',
    load: 'Load',
    loadModel: (name: string) => `Load ${name}`,
    addressHint: 'owner/name:Q4_K_M, or https://…',
    address: 'Name of a model on the hub, or an address; it is kept in this browser',
    hub: 'Hub, or a mirror of it',
    noName: (name: string) => `${name} is no name of a model, such as owner/name:Q4_K_M, and no address.`,
    noHub: (address: string) => `${address} is no address, such as https://hub.example.org or ./models.`,
    noWholeFile: (repo: string) => `${repo} has no GGUF file that is in one part.`,
    noFile: (repo: string, wanted: string, names: readonly string[]) =>
      `${repo} has no file ${wanted}. It has ${names.join(', ')}.`,
    unreachable: (host: string) => `${host} cannot be reached. Check the network.`,
    noRepository: (repo: string, host: string) => `There is no public repository ${repo} at ${host}. Check the name.`,
    badAnswer: (host: string, status: number) => `${host} answered ${status}. Try again later.`,
  },

  storage: {
    title: 'Stored in this browser',
    conversations: (count: number) =>
      count === 0 ? 'No conversations' : plural(count, 'conversation', 'conversations'),
    caches: (bytes: number) => `Their caches: ${formatBytes(bytes)}`,
    deleteCaches: 'Delete the caches',
    /** In the question whether to delete them. */
    theCaches: 'the caches of all conversations',
    aboutCaches: 'Conversations are read again when they go on.',
    modelDetail: 'Then it must be downloaded or chosen again.',
    inUse: (usage: number, quota: number) =>
      `${formatBytes(usage)} of ${formatBytes(quota)} in use, with the app itself`,
    deleteAll: 'Delete all that is stored',
    deleteAllQuestion: 'Delete all that is stored?',
    deleteAllDetail: 'All conversations, their caches, and the models that this site has stored.',
    use: 'Use',
    useModel: (name: string) => `Use ${name}`,
    goOn: 'Go on',
    goOnWith: (name: string) => `Go on with the download of ${name}`,
  },

  connection: {
    loading: 'Loading the model',
    downloading: 'Downloading the model',
    serverBack: 'The server is back',
    serverIs: (status: string) => `The server is ${status}`,
    fileGone: (name: string) =>
      `${name} was opened from a file, and a page may not open it again by itself. Choose it again.`,
    profileNotUsed: (reason: string) => `The profile is not used. ${reason}`,
    mimirHasProfile:
      'Mimir has its profile already. Open another model first, or its .gguf file together with the profile.',
    noFile: (url: string, status: number) => `${url} cannot be loaded: the host answered ${status}.`,
    noMimir: (host: string) => `Mimir cannot be loaded: ${host} does not answer.`,
    lost: 'The server does not answer: it was stopped, or the network is gone.',
    needsKey: 'This server needs an API key.',
    badStatus: (status: number) => `The server answered with status ${status}.`,
    notLoaded: 'The server could not load its model.',
    noServer: (address: string) => `There is no Kvasir server at ${address}.`,
  },

  failure: {
    goesOn: 'The page goes on by itself when it is back.',
    tryAgain: 'Try again',
    choose: (file: string) => `Choose ${file}`,
    useBrowser: 'Use this browser',
    useCpu: 'Use the CPU',
    useMimir: 'Use Mimir',
  },

  unlock: {
    title: 'This server needs a key',
    refused: 'The server does not accept this key.',
    key: 'API key',
    about: 'It is kept until this tab is closed.',
    unlock: 'Unlock',
  },

  compare: {
    label: 'Comparison',
    title: 'The same questions, two caches',
    about: (isMimir: boolean) =>
      `${isMimir ? 'Mimir' : 'Your model'} reads the same text twice in this browser, one after the other, and takes the likeliest word each time: every difference comes from the cache.`,
    start: 'Read ten pages of stories, and answer six questions on them',
    ask: 'Ask both…',
    left: 'Left',
    right: 'Right',
    codecLeft: 'Codec on the left',
    codecRight: 'Codec on the right',
    pane: (side: string, codec: string) => `${side}: ${codec}`,
    codec: (name: string, bits: number) => `${name}, ${bits} bits`,
    noAnswer: (codec: string) => `The answer with ${codec} appears here.`,
    questions: (count: number) => plural(count, 'question', 'questions'),
    waiting: 'waiting…',
    loading: 'loading…',
    reading: 'reading…',
    readingOf: (done: number, total: number) => `reading ${formatCount(done)} of ${formatCount(total)}`,
    saveImage: 'Save as an image',
    copyAddress: 'Copy the address of this comparison',
    noImage: 'The image cannot be drawn.',
    imageTitle: (left: string, right: string) => `${left} and ${right}: the same questions, two caches`,
    memory: 'Memory of the cache',
    readingSpeed: 'Reading speed',
    answeringSpeed: 'Answering speed',
    chooseToken: 'Token of the answer',
    token: (text: string, left: string, right: string) => `“${text}”: ${left} and ${right}`,
    /** How much two probabilities differ. */
    levels: { asSure: 'as sure, within 1 %', within5: 'within 5 %', within20: 'within 20 %', more: 'more' },
    lessMemory: (less: string, times: number, more: string) =>
      `${less} takes ${times.toFixed(1)} times less memory than ${more}.`,
    sameAnswers: (same: number, all: number) =>
      same === all ? `All ${all} answers are the same.` : `${same} of ${all} answers are the same.`,
    sameTokens: (count: number) => `Both write the same ${tokens(count)}.`,
    parts: (first: number, left: string, leftWord: string, right: string, rightWord: string) =>
      `The same for ${tokens(first)}; then ${left} writes “${leftWord}” and ${right} “${rightWord}”.`,
    asLikely: (same: number, all: number) =>
      `${formatCount(same)} of ${tokens(all)} ${all === 1 ? 'is' : 'are'} as likely with both, within 1 %.`,
  },
};
