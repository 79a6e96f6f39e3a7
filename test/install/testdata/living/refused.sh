# A configuration that cannot be used: told, not tried for ever.
cp /etc/zmailer/zmailer.conf /tmp/good.conf
echo 'HASHLEVELS=many' >>/etc/zmailer/zmailer.conf
code=0
zmctl restart >/tmp/said 2>&1 || code=$?
[ $code != 0 ] || fail "it was restarted: $(cat /tmp/said)"
cat /tmp/said
grep -q HASHLEVELS /tmp/said || fail "it does not tell what is wrong"
systemctl restart zmailer-scheduler.service 2>/dev/null && fail "systemd has started it"
[ "$(property zmailer-scheduler.service ExecMainStatus)" = 78 ] || fail "it ended with $(property zmailer-scheduler.service ExecMainStatus)"
[ "$(systemctl is-active zmailer-scheduler.service)" = failed ] || fail "it is $(systemctl is-active zmailer-scheduler.service)"
journalctl --no-pager -u zmailer-scheduler.service | grep -q 'HASHLEVELS' || fail "the journal does not tell"
cp /tmp/good.conf /etc/zmailer/zmailer.conf
! zmctl status >/tmp/said || fail "all is well: $(cat /tmp/said)"
grep '^scheduler *no' /tmp/said || fail "$(cat /tmp/said)"
zmctl start
healthy
