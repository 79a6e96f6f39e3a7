package route

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"sync"
	"time"
)

// keepLogin is how long an answer about a uid is used.
const keepLogin = time.Minute

type logins struct {
	now func() time.Time

	mu   sync.Mutex
	kept map[uint32]keptLogin
}

type keptLogin struct {
	name  string
	until time.Time
}

func newLogins(now func() time.Time) *logins {
	return &logins{now: now, kept: map[uint32]keptLogin{}}
}

// of returns the login of a uid; "uid1234" if it has none. An error means that
// the answer is unknown now.
func (l *logins) of(uid uint32) (string, error) {
	now := l.now()
	l.mu.Lock()
	k, ok := l.kept[uid]
	l.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.name, nil
	}
	number := strconv.FormatUint(uint64(uid), 10)
	name := "uid" + number
	u, err := user.LookupId(number)
	if unknown := user.UnknownUserIdError(0); err != nil && !errors.As(err, &unknown) {
		return "", fmt.Errorf("look up uid %d: %w", uid, err)
	} else if err == nil {
		name = u.Username
	}
	l.mu.Lock()
	l.kept[uid] = keptLogin{name, now.Add(keepLogin)}
	l.mu.Unlock()
	return name, nil
}

func uidsOf(list []string) ([]uint32, error) {
	var uids []uint32
	for _, s := range list {
		number := s
		if u, err := user.Lookup(s); err == nil {
			number = u.Uid
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is neither a login name nor a number", s)
		}
		uids = append(uids, uint32(n))
	}
	return uids, nil
}
