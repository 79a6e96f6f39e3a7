package durable_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
)

// put makes a file whose content and name are on the disk when it returns. If the power
// goes before the rename, a reader finds no file of that name, never a part of one.
func put(disk durable.FS, draft, name, text string) error {
	f, err := disk.Open(draft, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Append([]byte(text)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := disk.RenameNew(draft, name); err != nil {
		return err
	}
	return disk.SyncDir(".")
}

func Example() {
	disk := cutfs.New() // in a program: durable.NewOS(dir)
	fmt.Println(put(disk, "draft", "message", "hi\n"))
	fmt.Println("taken:", errors.Is(put(disk, "draft", "message", "ho\n"), fs.ErrExist))

	after := disk.Restart(cutfs.LoseUnsynced(0)) // a loss of power
	info, err := after.Stat("message")
	fmt.Println(info.Size, err)
	// Output:
	// <nil>
	// taken: true
	// 3 <nil>
}
