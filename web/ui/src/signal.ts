// A Signal tells its listeners about what happens, in the order in which they came.
// Who listens gets a function back that ends it.
export class Signal<T> {
  private readonly listeners = new Set<(value: T) => void>();

  on(listener: (value: T) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  emit(value: T): void {
    for (const listener of [...this.listeners]) listener(value); // a copy: a listener may end itself or another
  }
}
