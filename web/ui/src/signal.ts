// A Signal calls its listeners, in the order in which they were added. `on` returns a function that removes the listener.
export class Signal<T> {
  private readonly listeners = new Set<(value: T) => void>();

  on(listener: (value: T) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  emit(value: T): void {
    for (const listener of [...this.listeners]) listener(value); // a copy: a listener may remove itself or another
  }
}
