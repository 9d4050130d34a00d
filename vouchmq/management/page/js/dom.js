// A virtual DOM: views are functions from data to a tree, and `patch` changes what differs, so that
// focus, scroll positions and half-typed input survive a refresh. Text becomes text nodes only:
// nothing that a broker returns is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** One node: `h("a", {href: "#/"}, "text", otherNodes, false)`. */
export function h(type, props, ...children) {
  return { type, props: props ?? {}, children: flatten(children) };
}

function flatten(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false && each !== true);
}

/** Make the children of `parent` equal to these nodes. */
export function patch(parent, nodes) {
  patchChildren(parent, flatten([nodes]), parent.namespaceURI === SVG);
}

/** A DOM node of its own. */
export function create(node, inSvg = false) {
  if (typeof node !== "object") {
    return document.createTextNode(String(node));
  }
  const isSvg = inSvg || node.type === "svg";
  const element = isSvg ? document.createElementNS(SVG, node.type) : document.createElement(node.type);
  element.vnode = { type: node.type, props: {}, children: [] };
  if (node.type === "select" || node.type === "textarea") {
    // Their value needs their children.
    patchChildren(element, node.children, isSvg);
    setProps(element, node.props);
  } else {
    setProps(element, node.props);
    patchChildren(element, node.children, isSvg);
  }
  element.vnode = node;
  node.props.ref?.(element);
  return element;
}

function patchChildren(parent, nodes, isSvg) {
  const kept = new Map();
  const wanted = new Set();
  for (const node of nodes) {
    if (node.props?.key !== undefined) {
      wanted.add(node.props.key);
    }
  }
  for (const child of parent.childNodes) {
    const key = child.vnode?.props.key;
    if (key !== undefined) {
      kept.set(key, child);
    }
  }
  let at = parent.firstChild;
  for (const node of nodes) {
    while (at && at.vnode?.props.key !== undefined && !wanted.has(at.vnode.props.key)) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
    const key = node.props?.key;
    let child = key === undefined ? at : kept.get(key);
    if (child && isSame(child, node)) {
      update(child, node, isSvg);
    } else {
      child = create(node, isSvg);
    }
    if (child === at) {
      at = at.nextSibling;
    } else {
      parent.insertBefore(child, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function isSame(child, node) {
  if (typeof node !== "object") {
    return child.nodeType === Node.TEXT_NODE;
  }
  return child.vnode?.type === node.type && child.vnode.props.key === node.props.key;
}

function update(child, node, isSvg) {
  if (typeof node !== "object") {
    if (child.data !== String(node)) {
      child.data = String(node);
    }
    return;
  }
  const before = child.vnode;
  if (before === node) {
    return;
  }
  child.vnode = node;
  if (!node.props.own) {
    patchChildren(child, node.children, isSvg || node.type === "svg");
  }
  setProps(child, node.props, before.props);
}

function setProps(element, props, before = {}) {
  for (const name of Object.keys(before)) {
    if (!(name in props)) {
      setProp(element, name, undefined, before[name]);
    }
  }
  for (const [name, value] of Object.entries(props)) {
    if (value !== before[name]) {
      setProp(element, name, value, before[name]);
    }
  }
}

function setProp(element, name, value, before) {
  if (name === "key" || name === "ref" || name === "own") {
    return;
  }
  if (name.startsWith("on")) {
    element[name] = value ?? null;
  } else if (name === "style") {
    // Through the object model, which a strict Content-Security-Policy permits.
    for (const property of Object.keys(before ?? {})) {
      if (!(property in (value ?? {}))) {
        element.style.removeProperty(property);
      }
    }
    for (const [property, each] of Object.entries(value ?? {})) {
      element.style.setProperty(property, each);
    }
  } else if (name === "value" || name === "checked" || name === "open") {
    // What somebody has typed stays, until the wanted value itself changes.
    element[name] = value ?? "";
  } else if (value === undefined || value === null || value === false) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}
