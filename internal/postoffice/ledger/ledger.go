// Package ledger keeps account of every recipient: what was accepted, and what became
// of it. It owns ledger/ in the postoffice: journal, to which every process that moves
// messages appends lines; journal.N, journals that are being closed; base, the sums of
// what is done with and the lines of what is not. docs/ledger.md has the forms.
//
// A line is keyed by the spool ID and says what is so, not what is to be added: one
// that is written again changes nothing. It is written before the step that it speaks
// of can be seen on the disk, but for a submission's, which its router's replaces.
// So whatever process dies at whatever point, the next life writes what is missing.
//
// What survives a crash: a kill takes nothing; a torn line is passed over and what is
// behind it read. A power loss takes lines of the last seconds, because nothing is
// synced here but base: what the files on the disk contradict is then entered as
// unknown or found, in columns of their own.
//
// Diagnostics: entering a line never errs: mail does not wait for its account. Trouble
// is logged once as ledger-trouble, and Compare shows what is missing. ErrBase: base
// cannot be read; journals are kept until somebody removes or mends it.
package ledger

import (
	"errors"
	"os"
	"strings"

	"zmailer/internal/postoffice"
)

// ErrBase means that base is not what Fold has written.
var ErrBase = errors.New("ledger/base is damaged; what it counted is lost if you remove it, and the account begins anew")

// Names in the postoffice.
const (
	journalName = postoffice.Ledger + "/journal"
	baseName    = postoffice.Ledger + "/base"
	newBase     = postoffice.Ledger + "/base.new"
)

// ByPerson is why a message is gone that an operator removed before it was routed.
const ByPerson = "removed"

// Outcomes are what became of a message's recipients.
type Outcomes struct {
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`   // and reported to the sender, as far as he wished
	Silent    int64 `json:"silent"`   // failed, no report wanted
	Expired   int64 `json:"expired"`  // given up
	Removed   int64 `json:"removed"`  // by an operator, with zmctl
	Rerouted  int64 `json:"rerouted"` // a copy for them went to the router, and is accounted for
	Gone      int64 `json:"gone"`     // taken away by other hands, or discarded
	Unknown   int64 `json:"unknown"`  // lost sight of in a power loss
}

// Total returns the recipients in all columns.
func (o *Outcomes) Total() int64 {
	return o.Delivered + o.Failed + o.Silent + o.Expired + o.Removed + o.Rerouted + o.Gone + o.Unknown
}

func (o *Outcomes) add(p *Outcomes) {
	mine := o.columns()
	for i, c := range p.columns() {
		*mine[i].n += *c.n
	}
}

// column is a column with its key in a line.
type column struct {
	key string
	n   *int64
}

func (o *Outcomes) columns() [8]column {
	return [...]column{{"delivered", &o.Delivered}, {"failed", &o.Failed}, {"silent", &o.Silent}, {"expired", &o.Expired},
		{"removed", &o.Removed}, {"rerouted", &o.Rerouted}, {"gone", &o.Gone}, {"unknown", &o.Unknown}}
}

// BootID names the time since the machine was started: another one after a loss of
// power. noBoot: the kernel does not report it, or no descriptor was left.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := strings.TrimSpace(string(b))
	if err != nil || id == "" {
		return noBoot
	}
	return id
}

// noBoot stands for a boot that is not known, of which nothing follows.
const noBoot = "-"
