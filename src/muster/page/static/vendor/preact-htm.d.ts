// What the page uses of preact and htm, for `tsc --checkJs`. Ours: the vendored file has no types of its own.
export type Rendered = any;
export function html(strings: TemplateStringsArray, ...values: any[]): Rendered;
export function h(type: any, props?: any, ...children: any[]): Rendered;
export function render(what: Rendered, where: Element): void;
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useMemo<T>(made: () => T, inputs: readonly unknown[]): T;
export function useRef<T>(initial: T): { current: T };
