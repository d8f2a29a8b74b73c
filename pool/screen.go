package pool

import "trl/protocol"

func (t *Terminal) Screen() ([]byte, int64)         { return nil, t.journal.Size() }
func (t *Terminal) Snapshot() protocol.TermSnapshot { return protocol.TermSnapshot{} }
