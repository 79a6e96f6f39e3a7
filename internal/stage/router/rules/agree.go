package rules

import (
	"errors"
	"slices"

	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// agreeing are the tables that checkClasses compares with each other.
var agreeing = []text.Kind{text.LocalNames, text.VirtualAliasDomains, text.VirtualMailboxDomains, text.RelayDomains, text.Aliases}

// agreeAtStart checks tables that were just read against each other. If they do not agree, and there
// are copies of what they had when they did, those are used for the files that make the difference.
func (r *Rules) agreeAtStart(t *Tables) error {
	wrong := t.checkClasses()
	if wrong == nil {
		r.allGood()
		return nil
	}
	if r.keep == nil {
		return wrong
	}
	kept := *t
	for i := range r.feeds {
		if k := &r.feeds[i]; k.waiting != nil {
			if old := r.lastGood(k); old != nil {
				if bad, _ := config.Sort(k.parse(&kept, old.source)); bad != nil {
					return wrong
				}
			}
		}
	}
	if kept.checkClasses() != nil {
		for _, e := range config.Errors(wrong) {
			if at := (*config.Error)(nil); errors.As(e, &at) {
				r.keep.Bad(at.File, e, false)
			}
		}
		return wrong
	}
	*t = kept
	r.agreeOneByOne(t)
	return nil
}

// agree has t, into which files were read, be tables that agree: those of old instead of what does
// not. A file that keeps its old content for that is tried again when another has changed, since it
// may be the other one that is corrected. waited: files have waited for that already.
func (r *Rules) agree(t, old *Tables, waited bool) (changed bool) {
	if !waited && t.checkClasses() == nil {
		r.allGood()
		return true
	}
	for _, kind := range agreeing {
		*t.layersOf(kind) = *old.layersOf(kind)
	}
	// A domain may have moved from one file to another.
	return r.adopt(t, "") == nil || r.agreeOneByOne(t)
}

// agreeOneByOne takes into t the files that agree with it, and reports the others.
func (r *Rules) agreeOneByOne(t *Tables) (changed bool) {
	wrong := map[string]error{}
	for again := true; again; {
		again = false
		clear(wrong)
		for _, path := range r.waiting() {
			if err := r.adopt(t, path); err != nil {
				wrong[path] = err
				continue
			}
			again, changed = true, true
		}
	}
	for i := range r.feeds {
		k := &r.feeds[i]
		if err := wrong[k.file.path]; err != nil && k.waiting != nil && k.blamed != err.Error() {
			k.blamed = err.Error()
			r.refused(k.file.path, err)
		}
	}
	return changed
}

// allGood has the content of the files kept that were read, and that agree.
func (r *Rules) allGood() {
	for i := range r.feeds {
		if k := &r.feeds[i]; k.waiting != nil {
			r.good(k, *k.waiting)
			k.waiting, k.blamed = nil, ""
		}
	}
}

// waiting returns the files whose content was read and is not used yet.
func (r *Rules) waiting() (paths []string) {
	for i := range r.feeds {
		if k := &r.feeds[i]; k.waiting != nil && !slices.Contains(paths, k.file.path) {
			paths = append(paths, k.file.path)
		}
	}
	return paths
}

// adopt takes what was read from a file ("": from all files) into t, if the tables then agree.
func (r *Rules) adopt(t *Tables, path string) error {
	tried := *t
	var took []*feed
	for i := range r.feeds {
		k := &r.feeds[i]
		if k.waiting == nil || path != "" && k.file.path != path {
			continue
		}
		if bad, _ := config.Sort(k.parse(&tried, k.waiting.source)); bad != nil {
			return bad
		}
		took = append(took, k)
	}
	if err := tried.checkClasses(); err != nil {
		return err
	}
	*t = tried
	for _, k := range took {
		r.good(k, *k.waiting)
		k.waiting, k.blamed = nil, ""
	}
	return nil
}
