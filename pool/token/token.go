// Package token wakes a goroutine through a channel with room for one token. A token that is there already is enough: who takes it sees everything that
// has changed by then.
package token

// Put puts a token into c, unless c has one.
func Put(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// IsClosed reports whether c is closed. Nothing is ever sent on c.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
