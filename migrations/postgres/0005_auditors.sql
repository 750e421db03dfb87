-- An auditor reads: another login of his own would outlive the one that was taken from him, and to
-- rename or revoke a machine is a change.
SET LOCAL ROLE syncd_admin;

REVOKE EXECUTE ON FUNCTION syncd.my_device_add(uuid, text, text, text),
  syncd.my_device_rename(uuid, text, text), syncd.my_device_revoke(uuid, text, text),
  syncd.my_sessions_end(uuid, text)
FROM syncd_auditor;
GRANT EXECUTE ON FUNCTION syncd.my_device_add(uuid, text, text, text),
  syncd.my_device_rename(uuid, text, text), syncd.my_device_revoke(uuid, text, text),
  syncd.my_sessions_end(uuid, text)
TO syncd_member;
