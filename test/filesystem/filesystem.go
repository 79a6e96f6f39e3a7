// Package filesystem tests what the daemons do on file systems that cannot hold a postoffice,
// with real programs on a FUSE file system that a test serves. It needs root and /dev/fuse.
package filesystem
