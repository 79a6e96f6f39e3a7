package cutfs_test

import (
	"fmt"
	"io"
	"os"

	"zmailer/internal/disk/cutfs"
)

// A file is written and not synced; the power goes.
func Example() {
	disk := cutfs.New()
	f, err := disk.Open("file", os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = io.WriteString(f, "text")
	}
	if err != nil {
		fmt.Println(err)
	}
	for _, loss := range []cutfs.Loss{cutfs.KeepAll(), cutfs.MetadataFirst(), cutfs.LoseUnsynced(0)} {
		info, err := disk.Restart(loss).Stat("file")
		fmt.Printf("%v: %d bytes, there %v\n", loss, info.Size, err == nil)
	}
	// Output:
	// process killed: 4 bytes, there true
	// power lost, names=all data=none: 0 bytes, there true
	// power lost, names=0 data=none: 0 bytes, there false
}
