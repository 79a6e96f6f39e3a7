package disk

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"zmailer/test/disk/blockdev"
	"zmailer/test/suite"
)

var (
	images = flag.Int("images", 2, "how many losses of power are tried on each file system")
	seed   = flag.Uint64("seed", 1, "of the choice of losses")
	only   = flag.String("fs", "ext4,xfs", "the file systems; also ext4-journal and ext4-writeback")
)

// work is the directory of all tests, on a tmpfs; "" if they cannot run. bin has the programs.
var work, bin string

func TestMain(m *testing.M) {
	blockdev.Main()
	Main()
	suite.AtOnce(4)
	os.Exit(Isolated(func(dir string) int {
		if dir == "" {
			return m.Run()
		}
		work, bin = dir, filepath.Join(dir, "bin")
		if err := suite.Build(bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}))
}
