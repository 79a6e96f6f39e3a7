package scheduler

import "hash/fnv"

// senderKey tells senders apart, whose messages to a host take turns.
func (f *opened) senderKey() uint32 {
	if len(f.spec.Groups) == 0 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.spec.Groups[0].Sender.Address)) // never fails
	return h.Sum32()
}
