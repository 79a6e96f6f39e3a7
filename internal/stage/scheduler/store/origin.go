package store

import (
	"hash/fnv"

	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// senderKey returns a key of the sender, for taking turns at a host, with the origin of the
// message.
func senderKey(spec *workspec.Spec) uint32 {
	if len(spec.Groups) == 0 {
		return 0
	}
	from := spec.Groups[0].Sender.Address
	h := fnv.New32a()
	_, _ = h.Write([]byte(from)) // never fails
	return thread.SenderKey(h.Sum32(), whoseMail(spec))
}

// whoseMail returns the origin of a message. A message without a sender is a report, whoever
// submitted it: vacation programs do, and an unauthenticated client chooses their recipient.
func whoseMail(spec *workspec.Spec) thread.Origin {
	switch from := &spec.Groups[0].Sender; {
	case from.Channel == builtin.Error:
		return thread.Report
	case spec.Own, from.Privilege != "" && from.Privilege != privilegeNobody:
		return thread.Own
	}
	return thread.Relayed
}
