# Mail that waits when the machine goes down.
printf '%s   smtp![127.0.0.1]:%s\n' later.example 2727 far.example 2626 >>/etc/zmailer/routes
zmctl restart router
send 'it waits' ann@later.example
await sh -c "zmctl queue | grep -q 'connection refused'"
send 'just before' alice
