// Package leasetest publishes a lease for tests, as zmcluster does on a node.
//
// It owns a page in a temporary directory. Nothing survives the test.
//
// Diagnostics: every error ends the test.
package leasetest

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease"
)

// Node is a machine in a cluster.
type Node struct {
	Dir string // LEASEDIR

	t      testing.TB
	writer *lease.Writer
	number uint64
	until  atomic.Int64 // the deadline
}

// New makes a node that has a lease.
func New(t testing.TB) *Node {
	t.Helper()
	n := &Node{Dir: t.TempDir(), t: t}
	n.writer = assert.Get(lease.Create(n.Dir, "a"))(t)
	t.Cleanup(func() { assert.NoError(t, n.writer.Close()) })
	n.Hold()
	return n
}

// Hold gives the node a new lease, for as long as the test takes.
func (n *Node) Hold() {
	n.t.Helper()
	n.number++
	n.Until(lease.Longest)
}

// Until has the lease end after a time, unless Hold or Until renews it.
func (n *Node) Until(left time.Duration) {
	n.t.Helper()
	assert.Must(n.t, n.Publish(lease.Now()+left))
}

// Publish publishes a deadline.
func (n *Node) Publish(deadline time.Duration) error {
	n.until.Store(int64(deadline))
	return n.writer.Publish(n.number, deadline)
}

// Deadline returns what was published last.
func (n *Node) Deadline() time.Duration { return time.Duration(n.until.Load()) }

// Lose ends the lease.
func (n *Node) Lose() {
	n.t.Helper()
	assert.NoError(n.t, n.writer.Withdraw())
}

// Page returns the page as a program has it that is started now.
func (n *Node) Page() *lease.Page {
	n.t.Helper()
	return n.With(nil)
}

// With returns the page for a program with a clock of its own.
func (n *Node) With(now func() time.Duration) *lease.Page {
	n.t.Helper()
	p := assert.Get(lease.Open(lease.Options{Dir: n.Dir, Node: "a", Now: now}))(n.t)
	_ = p.Left()
	return p
}

// Expiring returns the page for a program whose clock passes the deadline after a number of looks.
func (n *Node) Expiring(looks int64) *lease.Page {
	n.t.Helper()
	var left atomic.Int64
	left.Store(math.MaxInt64)
	p := n.With(func() time.Duration {
		if left.Add(-1) < 0 {
			return lease.Now() + lease.Longest
		}
		return lease.Now()
	})
	left.Store(looks)
	return p
}

// Settings returns the lines of zmailer.conf that make a program one of the node. No etcd is
// asked by it.
func (n *Node) Settings() string {
	return fmt.Sprintf("CLUSTER=etcd://127.0.0.1:1\nNODE=a\nLEASEDIR=%s\n", n.Dir)
}
