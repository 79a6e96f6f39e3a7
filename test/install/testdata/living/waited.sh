# It is there after the boot, and so is all that came just before.
once 'just before' /var/mail/alice
await sh -c "zmctl queue | grep -q ann@later.example"
zmctl remove --to '*@later.example' --yes
await empty
[ "$(zmctl check | tail -n 1 | grep -c ' 0 errors')" = 1 ] || fail "$(zmctl check)"
