package store

import (
	"hash/fnv"

	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// senderKey tells senders apart, whose messages to a host take turns, and has the origin
// of the message.
func senderKey(spec *workspec.Spec) uint32 {
	if len(spec.Groups) == 0 {
		return 0
	}
	from := spec.Groups[0].Sender.Address
	h := fnv.New32a()
	_, _ = h.Write([]byte(from)) // never fails
	return thread.SenderKey(h.Sum32(), whoseMail(spec))
}

// whoseMail is whose mail a message is. One without a sender is a report whoever submitted
// it: programs that answer by themselves do, and a stranger chooses where that goes.
func whoseMail(spec *workspec.Spec) thread.Origin {
	switch from := &spec.Groups[0].Sender; {
	case from.Channel == builtin.Error:
		return thread.Report
	case spec.Own, from.Privilege != "" && from.Privilege != privilegeNobody:
		return thread.Own
	}
	return thread.Relayed
}
