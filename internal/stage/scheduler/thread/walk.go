package thread

import "iter"

// All gives all threads of all rings. Between two of them the caller may change anything:
// a thread that comes or goes meanwhile may be given or not.
func (c *Core) All() iter.Seq[*Thread] {
	return func(yield func(*Thread) bool) {
		for _, r := range c.rings {
			for _, t := range r.threads {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// Find is the thread of a channel and host, nil if there is none. key is that of the ring
// that serves it now; while a thread has not followed a new configuration it is in another.
func (c *Core) Find(key, channel, host string) *Thread {
	k := keyOf(channel, host)
	if r := c.rings[key]; r != nil && r.threads[k] != nil {
		return r.threads[k]
	}
	for _, r := range c.rings {
		if t := r.threads[k]; t != nil {
			return t
		}
	}
	return nil
}
