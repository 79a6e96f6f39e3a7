package scheduler

// unproven is how many deliveries of a ring may be under way at once to hosts that have not
// answered: what maxunproven says, or half of the places that the ring can have, but two
// if it has so many: one host does not keep another waiting. 0: no limit.
func (s *Settings) unproven() int {
	if s.MaxUnproven >= 0 {
		return s.MaxUnproven
	}
	places := 0
	for _, n := range []int{s.MaxRing, s.MaxChannel, s.MaxTA * slotsOf(&s.Command)} {
		if n > 0 && (places == 0 || n < places) {
			places = n
		}
	}
	return max((places+1)/2, min(places, 2))
}
