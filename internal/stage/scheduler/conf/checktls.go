package conf

// badPolicies checks each tls= of the file. An agent exits when it is started with a policy
// that it cannot use.
func (c *File) badPolicies(check func(string) error) (list []error) {
	if check == nil {
		return nil
	}
	for i := range c.bodies {
		b := &c.bodies[i]
		at, ok := b.where["tls"]
		if !ok {
			continue
		}
		s := Defaults()
		for _, set := range b.sets {
			set(&s)
		}
		if err := check(s.TLS); err != nil {
			list = append(list, c.bad(at, "tls=%s: %v", s.TLS, err))
		}
	}
	return list
}
