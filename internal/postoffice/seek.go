package postoffice

import "fmt"

// seek looks for a file of queue/ or transport/ by the last element of its name: where
// it belongs at each depth first, then in every other hash directory, because people
// move files into those (K10). "" if it is nowhere; else its name below top.
func (p *PostOffice) seek(top string, n Name) (string, error) {
	for levels := 0; levels <= 2; levels++ {
		if rel, err := p.seekIn(top, HashDir(n.Ino, levels), n); rel != "" || err != nil {
			return rel, err
		}
	}
	for x := 'A'; x <= 'Z'; x++ {
		dir := string(x)
		// A directory that is not there spares the look into those below.
		if ok, err := p.exists(top + "/" + dir); err != nil {
			return "", err
		} else if !ok {
			continue
		}
		if rel, err := p.seekIn(top, dir, n); rel != "" || err != nil {
			return rel, err
		}
		for y := 'A'; y <= 'Z'; y++ {
			if rel, err := p.seekIn(top, dir+"/"+string(y), n); rel != "" || err != nil {
				return rel, err
			}
		}
	}
	return "", nil
}

func (p *PostOffice) seekIn(top, dir string, n Name) (string, error) {
	rel := n.String()
	if dir != "" {
		rel = dir + "/" + rel
	}
	ok, err := p.exists(top + "/" + rel)
	if err != nil || !ok {
		return "", err
	}
	return rel, nil
}

// SpecGone tells whether there is no specification of that name.
func (p *PostOffice) SpecGone(name string) (bool, error) {
	there, err := p.exists(Transport + "/" + name)
	if err != nil {
		return false, fmt.Errorf("look for specification %s: %w", name, err)
	}
	return !there, nil
}
