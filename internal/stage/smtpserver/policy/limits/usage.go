package limits

import (
	"cmp"
	"slices"
	"time"
)

// Usage is how much of a rate one user, address or sender has used.
type Usage struct {
	Limit string        `json:"limit"` // user-messages and so on
	Who   string        `json:"who"`
	Used  int           `json:"used"` // of Count: what is left may come at once
	Count int           `json:"count"`
	Per   time.Duration `json:"per"`
}

// Left returns how many may come at once.
func (u *Usage) Left() int { return u.Count - u.Used }

// more sorts those first that have less left of their rate.
func (u *Usage) more(than Usage) int {
	return cmp.Or(cmp.Compare(than.Used*u.Count, u.Used*than.Count), cmp.Compare(u.Limit, than.Limit), cmp.Compare(u.Who, than.Who))
}

// words name the rates, with those of a user instead of an address.
var words = [kinds]struct{ client, user string }{
	connecting: {"client-connections", ""}, sending: {"client-messages", "user-messages"}, naming: {"client-recipients", "user-recipients"},
	sendingAs: {"sender-messages", ""}, namingAs: {"sender-recipients", ""}, guessing: {"client-password-failures", ""},
}

// CountsAny reports whether there is a rate for mail or connections.
func (c *Config) CountsAny() bool {
	return c.Connections.Count+c.Messages.Count+c.Recipients.Count+c.SenderMessages.Count+c.SenderRecipients.Count > 0
}

func (k key) String() string {
	switch {
	case k.user != "":
		return k.user
	case k.sender != "":
		return k.sender
	case k.net.IsSingleIP():
		return k.net.Addr().String()
	}
	return k.net.String()
}

// usage returns what a key has used of a rate.
func (a *account) usage(k key, kind int, r Rate, now time.Time) Usage {
	word := words[kind].client
	if k.user != "" {
		word = words[kind].user
	}
	u := Usage{Limit: word, Who: k.String(), Count: r.Count, Per: r.Per}
	if ahead := a.upto[kind].Sub(now); ahead > 0 {
		one := r.Per / time.Duration(r.Count)
		u.Used = min(int((ahead+one-1)/one), r.Count)
	}
	return u
}

func (l *Limits) rateOf(a *account, kind int) Rate {
	if a.own != nil {
		return a.own[kind]
	}
	return l.rates[kind]
}

// Top returns the n that have the least left of their rates.
func (l *Limits) Top(n int) (list []Usage) {
	now := l.c.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, a := range l.accounts {
		for kind := range a.upto {
			r := l.rateOf(a, kind)
			if r.Count == 0 || !a.upto[kind].After(now) {
				continue
			}
			u := a.usage(k, kind, r, now)
			if n <= 0 || len(list) == n && u.more(list[n-1]) >= 0 {
				continue
			}
			at, _ := slices.BinarySearchFunc(list, u, func(x, y Usage) int { return x.more(y) })
			list = slices.Insert(list, at, u)
			list = list[:min(len(list), n)]
		}
	}
	return list
}

// Of returns the rates that hold for the messages and recipients of a client and a sender, with what
// they have used; none where nothing is counted.
func (l *Limits) Of(w *Who) (list []Usage) {
	if w.User == "" && l.Exempt(w.Addr) {
		return nil
	}
	now := l.c.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(k key, kind int, own *Rate) {
		r := l.rates[kind]
		if own != nil {
			r = *own
		}
		a := l.accounts[k]
		if a == nil {
			a = &account{}
		}
		if r.Count > 0 {
			list = append(list, a.usage(k, kind, r, now))
		}
	}
	client := who(w.Addr, w.User)
	add(client, sending, w.UserRates.Messages)
	add(client, naming, w.UserRates.Recipients)
	if w.Sender != "" {
		add(key{sender: w.Sender}, sendingAs, w.SenderRates.Messages)
		add(key{sender: w.Sender}, namingAs, w.SenderRates.Recipients)
	}
	return list
}
