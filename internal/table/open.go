package table

import "zmailer/internal/config"

// Open opens a source; its error is a *config.Error. Nothing is asked yet: a server that
// is down now is an error of Lookup.
func Open(source string, o Options) (Table, error) {
	o = o.withDefaults()
	s, err := Parse(source, o.Dir)
	if err != nil {
		return nil, err
	}
	return nil, &config.Error{File: s.Text, Reason: s.Scheme + ": cannot be opened by this program"}
}
