package builtin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
)

// Recipients on channel hold wait for a condition, which is their host (M11):
//
//	timeout:SECONDS   the time, in seconds since 1970, has come
//	age:INTERVAL      the message is that old: seconds, or 2h30m
//	io:/FILE          the file can be opened and read
//	ns:NAME/TYPE      a name server answers the question, with yes or no; TYPE is a by default
//
// Then they, and only they, are routed again.

// Condition is a parsed host of channel hold.
type Condition struct {
	At  time.Time     // timeout
	Age time.Duration // age
	// Ask checks a condition that does not depend on the clock; nil: it depends on the clock.
	Ask func(ctx context.Context, server string) error
}

// ParseCondition reads it. The class may be in any case, as in ZMailer.
func ParseCondition(host string) (c Condition, err error) {
	class, arg, ok := strings.Cut(host, ":")
	if !ok || arg == "" {
		return c, errors.New("want CLASS:ARGUMENT")
	}
	switch strings.ToLower(class) {
	case "timeout":
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 0 || n > 1<<40 {
			return c, errors.New("timeout wants seconds since 1970")
		}
		c.At = time.Unix(n, 0)
	case "age":
		if n, err := strconv.ParseUint(arg, 10, 31); err == nil {
			c.Age = time.Duration(n) * time.Second
		} else if c.Age, err = config.ParseDuration(arg); err != nil {
			return c, fmt.Errorf("age: %w", err)
		}
	case "io":
		if !filepath.IsAbs(arg) {
			return c, errors.New("io wants an absolute path")
		}
		c.Ask = func(context.Context, string) error { return readable(arg) }
	case "ns":
		name, kind, typed := strings.Cut(arg, "/")
		t, known := dns.StringToType[strings.ToUpper(kind)]
		if !typed {
			t, known = dns.TypeA, true
		}
		if _, ok := dns.IsDomainName(name); !ok || !known || name == "" {
			return c, errors.New("ns wants NAME/TYPE")
		}
		c.Ask = func(ctx context.Context, server string) error { return answered(ctx, server, name, t) }
	default:
		return c, fmt.Errorf("unknown class %q; want timeout, age, io or ns", class)
	}
	return c, nil
}

// answerTimeout is how long one name server may take.
const answerTimeout = 5 * time.Second

// readable reports why a file cannot be opened and read.
func readable(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if _, err := f.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// answered reports why no name server has answered yes or no. server "": those of
// /etc/resolv.conf.
func answered(ctx context.Context, server, name string, kind uint16) error {
	servers := []string{server}
	if server == "" {
		c, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil {
			return err
		}
		servers = servers[:0]
		for _, s := range c.Servers {
			servers = append(servers, net.JoinHostPort(s, c.Port))
		}
	}
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), kind)
	err := errors.New("no name server is configured")
	for _, s := range servers {
		var r *dns.Msg
		if r, _, err = (&dns.Client{Timeout: answerTimeout}).ExchangeContext(ctx, q, s); err != nil {
			continue
		}
		if r.Rcode == dns.RcodeSuccess || r.Rcode == dns.RcodeNameError {
			return nil
		}
		err = fmt.Errorf("%s answered %s", s, dns.RcodeToString[r.Rcode])
	}
	return err
}
