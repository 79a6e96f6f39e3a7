package metrics

import (
	"fmt"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

// process adds the metrics of every program about itself, under the names that are usual
// with Prometheus.
func (s *Set) process() {
	began := float64(time.Now().UnixNano()) / 1e9
	s.Ask(0, func(put Put) {
		put("zmailer_program_info", 1, s.program, runtime.Version())
		put("process_start_time_seconds", began)
		put("go_goroutines", float64(runtime.NumGoroutine()))
		m := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		runtimemetrics.Read(m)
		put("go_memstats_heap_alloc_bytes", float64(m[0].Value.Uint64()))
		for name, ask := range map[string]func() (float64, bool){
			"process_cpu_seconds_total": processorTime, "process_resident_memory_bytes": residentMemory,
			"process_open_fds": openFiles, "process_max_fds": mostFiles,
		} {
			if v, ok := ask(); ok {
				put(name, v)
			}
		}
	},
		Family{"zmailer_program_info", "1, with the program's name and the version of Go that it was built with.", []string{"program", "go"}},
		Family{"process_start_time_seconds", "When the process began, in seconds since 1970.", nil},
		Family{"process_cpu_seconds_total", "Time of the processors that the process has used.", nil},
		Family{"process_resident_memory_bytes", "Memory of the process that is in the machine's memory.", nil},
		Family{"process_open_fds", "Open file descriptors.", nil},
		Family{"process_max_fds", "How many file descriptors it may open.", nil},
		Family{"go_goroutines", "Goroutines.", nil},
		Family{"go_memstats_heap_alloc_bytes", "Bytes of the heap that are in use.", nil})
}

func processorTime() (float64, bool) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, true
}

func residentMemory() (float64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	var size, resident int
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, false
	}
	return float64(resident) * float64(os.Getpagesize()), true
}

func openFiles() (float64, bool) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, false
	}
	return float64(len(list) - 1), true // without the one that this was read by
}

func mostFiles() (float64, bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return float64(l.Cur), true
}
