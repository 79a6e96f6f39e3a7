package table

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// signature identifies a state of a file.
type signature struct {
	dev, ino       uint64
	size           int64
	mtime          syscall.Timespec
	mode, uid, gid uint32
}

func sign(info fs.FileInfo) signature {
	st := info.Sys().(*syscall.Stat_t)
	return signature{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Mode, st.Uid, st.Gid}
}

func signPath(path string) (signature, error) {
	info, err := os.Stat(path)
	if err != nil {
		return signature{}, err
	}
	return sign(info), nil
}

// Privilege returns the uid that a file's values act as: its owner, or Nobody if others than
// the owner may write it or put another in its place (M48).
func Privilege(path string, info fs.FileInfo) uint32 { return privilege(path, sign(info)) }

func privilege(path string, sig signature) uint32 {
	const others = 0o022
	if sig.mode&others != 0 {
		return Nobody
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil || dir.Mode().Perm()&others != 0 && dir.Mode()&fs.ModeSticky == 0 {
		return Nobody
	}
	return sig.uid
}

// actsAs returns the privilege of a compiled table's values. Only root may speak for another;
// a table that somebody made of another's text acts as nobody.
func actsAs(owner, source uint32) uint32 {
	if owner == 0 || owner == source {
		return source
	}
	return Nobody
}
