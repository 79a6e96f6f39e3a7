package protocol

import "time"

// Kind is the kind of an event.
type Kind uint8

// Events. Tick has none of the fields below; all others name what they need.
const (
	Tick          Kind = iota
	AllEnded           // ID: no daemon of this node exists any more
	Joined             // ID, Sent: the lease is granted, nodes/NAME was created under it
	NameTaken          // ID, Holder, Revision: nodes/NAME was created at Revision and names the machine Holder
	JoinFailed         // ID
	Renewed            // Lease, Sent
	LeaseGone          // Lease: etcd does not know the lease
	NodeSeen           // Node: the key nodes/NODE exists
	NodeGone           // Node
	Seen               // Postoffice, Holder, Revision: the key postoffices/NAME was created
	Vanished           // Postoffice, Revision: it was deleted
	Asked              // Postoffice: its owner asks for it, with a key under its lease
	Unasked            // Postoffice: that key is gone
	Won                // Postoffice, ID, Revision
	Lost               // Postoffice, ID
	EpochRead          // Postoffice, ID, Revision: the highest epoch that is stored, 0 if none; of ReadEpoch or WriteEpoch
	EpochDamaged       // Postoffice, ID
	EpochWritten       // Postoffice, ID: written and synced, and the highest
	Ended              // Postoffice, ID: of Start or Stop; the daemons of the postoffice exist no more
	Released           // Postoffice, ID
	RequestFailed      // Postoffice, ID: claim, release, reading or writing the epoch; the effect is unknown
	StorageFailed      // Postoffice: a probe of its file system failed or hangs
	StorageBack        // Postoffice
	Quit               // the operator ends this node's membership
)

// Event is something that happened.
type Event struct {
	Kind       Kind
	Node       string
	Postoffice string
	Holder     string
	ID         uint64
	Lease      uint64
	Revision   uint64
	Sent       time.Duration // the time that the action Join or Renew had
}

// Verb is the kind of an action.
type Verb uint8

// Actions.
const (
	EndAll     Verb = iota // ID: end all daemons, also those of an earlier life, and answer AllEnded
	Join                   // ID, Sent: a new lease, and nodes/NAME under it
	Renew                  // Lease, Sent
	Leave                  // Lease: revoke it; no answer is needed
	Publish                // Deadline: in the page that the daemons read; 0: none
	Refuse                 // Holder: another node has this name; the program ends
	Ask                    // Postoffice, Lease: the key that asks the holder to hand it back
	Claim                  // Postoffice, ID, Lease
	Release                // Postoffice, ID, Epoch
	ReadEpoch              // Postoffice, ID
	WriteEpoch             // Postoffice, ID, Epoch
	Start                  // Postoffice, ID, Epoch
	Stop                   // Postoffice, ID: they finish what they have in hand
	Alarm                  // Postoffice, Alarm
)

// Trouble is the cause of an alarm.
type Trouble uint8

// Causes of alarms.
const (
	Overtaken Trouble = iota + 1 // the stored epoch is higher than the claim
	Damaged                      // the epoch cannot be read
)

// Action is something that the program has to do.
type Action struct {
	Verb       Verb
	Postoffice string
	Holder     string
	ID         uint64
	Lease      uint64
	Epoch      uint64
	Sent       time.Duration
	Deadline   time.Duration
	Trouble    Trouble
}
