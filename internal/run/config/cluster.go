package config

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// Cluster is what CLUSTER, NODE and LEASEDIR say.
type Cluster struct {
	Members []string // host:port of each member of etcd; none: this machine is in no cluster
	Node    string   // the name of this machine in the cluster
	Dir     string   // where the lease of the node is published
}

// On reports whether this machine is in a cluster.
func (c *Cluster) On() bool { return len(c.Members) > 0 }

// DefaultLeaseDir is the default of LEASEDIR.
const DefaultLeaseDir = "/run/zmailer"

// Cluster reads CLUSTER, NODE and LEASEDIR.
func (c *Config) Cluster() (Cluster, error) {
	members, err := parseCluster(c.String("CLUSTER", ""))
	if err != nil {
		return Cluster{}, c.Invalid("CLUSTER", "cannot be used", err)
	}
	out := Cluster{Members: members, Node: c.String("NODE", ""), Dir: c.String("LEASEDIR", DefaultLeaseDir)}
	if out.On() && out.Node == "" {
		bad := c.Invalid("CLUSTER", "needs NODE", nil)
		bad.Remedy = "set NODE to the name of this machine in the cluster"
		return Cluster{}, bad
	}
	return out, nil
}

// parseCluster reads CLUSTER: etcd://HOST:PORT, and further HOST:PORT after commas.
func parseCluster(text string) (members []string, err error) {
	const form = "it must be like etcd://a.example:2379,b.example:2379,c.example:2379"
	if text == "" {
		return nil, nil
	}
	rest, ok := strings.CutPrefix(text, "etcd://")
	if !ok || rest == "" {
		return nil, errors.New(form)
	}
	if strings.Contains(rest, "@") {
		return nil, errors.New("it has no user and no password: every user may read it")
	}
	for member := range strings.SplitSeq(rest, ",") {
		if err := checkHostPort(member); err != nil {
			return nil, fmt.Errorf("%q: %s", member, form)
		}
		host, _, _ := net.SplitHostPort(member)
		if strings.ContainsAny(host, " \t/") {
			return nil, fmt.Errorf("%q: %s", member, form)
		}
		members = append(members, member)
	}
	return members, nil
}

func checkCluster(text string) error {
	_, err := parseCluster(text)
	return err
}

// maxNode is how long the name of a node may be.
const maxNode = 64

// CheckNode reports why a name cannot be that of a node: it is a part of file names and of keys.
func CheckNode(name string) error {
	switch {
	case name == "" || len(name) > maxNode:
		return fmt.Errorf("the name of a node has 1 to %d characters", maxNode)
	case name[0] == '.' || name[0] == '-':
		return fmt.Errorf("the name of a node does not begin with %q", name[:1])
	}
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._", r))
	}
	if strings.ContainsFunc(name, bad) {
		return errors.New("the name of a node has letters, digits, dots, hyphens and underscores only")
	}
	return nil
}
