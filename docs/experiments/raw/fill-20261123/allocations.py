"""allocations.py FILE REQUESTS: blocks and bytes for a request by place, of what allocations.sh has written."""
import json,sys,re
d=json.load(open(sys.argv[1])); n=int(sys.argv[2])
ft=d["ftbl"]
tot=0; totb=0
rows=[]
for pp in d["pps"]:
    k=pp["tbk"]/n
    if k<0.2: continue
    out=[]
    for i in pp["fs"]:
        m=re.match(r"0x[0-9A-F]+: (.*) \((?:in )?(.*)\)$",ft[i])
        if not m: continue
        name,loc=m.groups()
        if not loc.startswith("crates/") and not re.match(r"(\w+\.rs:\d+)$",loc): continue
        if re.match(r"(alloc|vec|raw_vec|mod|unix|string|boxed|rc|sync|slice|smallvec)\.rs",loc) and not loc.startswith("crates"): continue
        loc=loc.replace("crates/","").replace("/src/","/")
        if out and out[-1]==loc: continue
        out.append(loc)
        if len(out)>=5: break
    rows.append((k,pp["tb"]/pp["tbk"],out)); tot+=k; totb+=pp["tb"]/n
rows.sort(key=lambda r:(r[2]))
print("blocks/fill",round(tot,1),"bytes/fill",round(totb))
for k,b,o in rows: print(f"{k:5.2f} {b:7.0f}  "+" < ".join(o))
