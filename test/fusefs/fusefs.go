// Package fusefs shows a directory at another one through FUSE, with some of what a postoffice
// needs missing or wrong, so that tests run the real programs on such a file system. It needs
// root and /dev/fuse.
//
// It owns the mount: Unmount ends it, and the end of the process makes every call there fail.
//
// Diagnostics: errors of mount(2).
package fusefs

import (
	"context"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Faults say what the file system does not do as it should.
type Faults struct {
	NoRenameFlags bool // renameat2(2) with flags is refused, as GlusterFS, NFS and CephFS do
	NoLink        bool // link(2) is refused
	NoSticky      bool // chmod(2) drops the sticky bit
	OtherInodes   bool // readdir(2) gives other inode numbers than stat(2)
	NoSync        bool // fsync(2) of a file is refused
}

// Mount shows the directory below at another.
func Mount(below, at string, faults Faults) (unmount func() error, err error) {
	var st syscall.Stat_t
	if err := syscall.Stat(below, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: below, Err: err}
	}
	root := &fs.LoopbackRoot{Path: below, Dev: st.Dev}
	if faults.OtherInodes {
		root.Dev = 0
	}
	//lint:ignore SA1019 a node that WrapChild gives would have to unwrap what it renames into
	root.NewNode = func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &node{LoopbackNode: fs.LoopbackNode{RootData: data}, faults: &faults}
	}
	//lint:ignore SA1019 as above
	root.RootNode = root.NewNode(root, nil, "", nil)
	server, err := fs.Mount(at, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "test", Name: "loopback", AllowOther: true, Options: []string{"default_permissions"},
	}})
	if err != nil {
		return nil, err
	}
	return func() error {
		err := server.Unmount()
		if err != nil {
			err = syscall.Unmount(at, syscall.MNT_DETACH)
		}
		return err
	}, nil
}

// Supported reports why nothing can be mounted, "" if it can.
func Supported() string {
	if os.Geteuid() != 0 {
		return "only root mounts file systems"
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return "no FUSE: " + err.Error()
	}
	return ""
}

// node is a file or a directory.
type node struct {
	fs.LoopbackNode
	faults *Faults
}

// Rename implements fs.NodeRenamer.
func (n *node) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if flags != 0 && n.faults.NoRenameFlags {
		return syscall.EINVAL
	}
	return n.LoopbackNode.Rename(ctx, name, to, newName, flags)
}

// Link implements fs.NodeLinker.
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if n.faults.NoLink {
		return nil, syscall.EOPNOTSUPP
	}
	return n.LoopbackNode.Link(ctx, target, name, out)
}

// Setattr implements fs.NodeSetattrer.
func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if n.faults.NoSticky && in.Valid&fuse.FATTR_MODE != 0 {
		in.Mode &^= syscall.S_ISVTX
	}
	return n.LoopbackNode.Setattr(ctx, f, in, out)
}

// Fsync implements fs.NodeFsyncer.
func (n *node) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	if n.faults.NoSync {
		return syscall.EINVAL
	}
	if f, ok := f.(fs.FileFsyncer); ok {
		return f.Fsync(ctx, flags)
	}
	return 0
}
