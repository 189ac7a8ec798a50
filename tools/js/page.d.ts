// What the page uses of preact, htm and uPlot, for `tsc --checkJs`: the vendored files have no types of their own.

interface Ref<T> { current: T }
interface Window {
  uPlot: new (options: object, data: ArrayLike<unknown>[], box: HTMLElement) => { setSize(size: object): void; setData(data: unknown[]): void; destroy(): void; over: HTMLElement; posToVal(at: number, scale: string): number; valToPos(value: number, scale: string): number };
  musterLastDelta: number;
}
