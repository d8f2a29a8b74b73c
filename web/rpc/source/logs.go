package source

import (
	"cmp"
	"io"
	"unicode/utf8"

	"trl/pool"
	"trl/protocol"
)

// Logs reads what is kept from offset on, at most limit bytes. It does not wait.
func (src *Source) Logs(offset, limit int64) (*protocol.Logs, error) {
	logs := &protocol.Logs{StreamID: src.Stream, Chunks: []protocol.Chunk{}, NextOffset: offset}
	r, err := src.Attach(offset, pool.ReadOptions{Text: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for limit > 0 {
		ch, ok, err := r.TryNext()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if ch.Gap > 0 {
			if len(logs.Chunks) > 0 {
				break // output was dropped meanwhile: the next answer begins with this gap
			}
			logs.Gap = &protocol.GapRange{From: ch.Offset - ch.Gap, To: ch.Offset}
		}
		data := cutBetweenCharacters(ch.Data, limit)
		limit -= int64(len(data))
		c := protocol.Chunk{Offset: ch.Offset, Stream: ch.Stream.String()}
		if c.Data, c.Encoding = protocol.EncodeBytes(data); c.Encoding == protocol.UTF8 {
			c.Encoding = "" // the default
		}
		logs.Chunks = append(logs.Chunks, c)
		logs.NextOffset = ch.Offset + int64(len(data))
		if len(data) < len(ch.Data) {
			break
		}
	}
	logs.EOF = src.Ended() && logs.NextOffset >= src.Journal.Size()
	return logs, nil
}

// cutBetweenCharacters returns the beginning of p, at most limit bytes, cut between characters. It is empty only if p is.
func cutBetweenCharacters(p []byte, limit int64) []byte {
	if int64(len(p)) <= limit {
		return p
	}
	cut := int(max(limit, 1))
	for at := max(0, cut-utf8.UTFMax+1); at < cut; at++ {
		if _, n := utf8.DecodeRune(p[at:]); at+n > cut {
			return p[:cmp.Or(at, n)]
		}
	}
	return p[:cut]
}
