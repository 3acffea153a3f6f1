/** Runs before every test file. What it imports is evaluated once per process, so the comparison is added once. */
import './equal-arrays.ts';
