/** What is said of a path that no route answers, in the shape of the API that it belongs to. */
import type { Route } from './route.ts';
import { routes } from './routes.ts';
import { openaiWire, type Wire } from './wire.ts';

const patterns = routes.map(route => ({
  route,
  pattern: new RegExp(`^${route.path.replace(/:\w+(?:\{(.*?)\})?/g, (_, part = '[^/]+') => part)}$`),
}));

/** The routes of a path, whatever their method. */
export const routesAt = (path: string): Route[] =>
  patterns.filter(({ pattern }) => pattern.test(path)).map(({ route }) => route);

/** The API of a path: of its route, or of those that begin like it. */
export function wireOf(path: string): Wire {
  const [folder] = path.slice(1).split('/');
  const route =
    routesAt(path)[0] ??
    routes.find(one => path.startsWith(`${one.path}/`)) ??
    routes.find(one => one.path.startsWith(`/${folder}/`));
  return route?.wire ?? openaiWire;
}

/** Clients often have a base URL without its /v1, or with two. */
export function suggestPath(path: string): string {
  const meant = routes.find(route => route.path.endsWith(path) || path.endsWith(route.path));
  return meant && path !== '/' ? ` Did you mean ${meant.path}?` : ' GET /openapi.json lists what there is.';
}
