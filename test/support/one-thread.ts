/** Other files are tested at the same time: models use one thread, unless a test asks for more. */
import { platform } from '../../src/platform/node.ts';

platform.coreCount = () => 1;
