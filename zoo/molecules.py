"""Molecules (SMILES or RDKit Mol) as graphs: what is read off each atom and bond."""

from functools import cache

import numpy as np

from zoo.errors import ZooError
from zoo.rawgraph import RawGraph

LONGEST = 10_000  # characters of a SMILES: parsing takes time that grows faster than the length
# What the columns are known to hold. Everything else falls into the unknown bucket.
ATOMS = {
    "atomic_number": list(range(1, 84)),  # H to Bi
    "degree": list(range(7)),
    "charge": [-2, -1, 0, 1, 2, 3],
    "hydrogens": list(range(5)),
    "hybridisation": ["S", "SP", "SP2", "SP3", "SP2D", "SP3D", "SP3D2"],
    "aromatic": [0, 1],
    "ring": [0, 3, 4, 5, 6, 7, 8, 9],  # atoms of the smallest ring; 0: in none, 9: 9 or more
    "chirality": ["", "R", "S"],
    "radicals": [0, 1, 2],
}
BONDS = {
    "bond": ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "DATIVE"],
    "conjugated": [0, 1],
    "bond_ring": [0, 3, 4, 5, 6, 7, 8, 9],
    "stereo": ["STEREONONE", "STEREOANY", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS"],
}


@cache
def _rdkit():
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise ZooError("molecules need RDKit: pip install 'zoo-attention[molecules]'") from error
    return Chem, rdBase


def is_molecule(item) -> bool:
    """A SMILES string or an RDKit Mol (told by its class name: RDKit need not be there)."""
    return isinstance(item, str) or any(kind.__name__ == "Mol" for kind in type(item).__mro__)


def parse(smiles: str, name: str = ""):
    """RDKit Mol of a SMILES string; its warnings go nowhere. ZooError with `name`, the SMILES and RDKit's reason."""
    Chem, rdBase = _rdkit()
    where = f"{name}: " if name else ""
    if not smiles or not smiles.strip():
        raise ZooError(f"{where}empty SMILES")
    if len(smiles) > LONGEST:
        raise ZooError(f"{where}SMILES of {len(smiles)} characters, {smiles[:40]!r} ...; allowed: up to {LONGEST}")
    with rdBase.BlockLogs():
        try:
            mol = Chem.MolFromSmiles(smiles)
        except (RuntimeError, ValueError, UnicodeError) as error:  # what the parser itself does not foresee
            raise ZooError(f"{where}invalid SMILES {smiles[:200]!r}: {_first_line(error)}") from error
        if mol is None:
            raise ZooError(f"{where}invalid SMILES {smiles[:200]!r}: {_reason(Chem, smiles)}")
    return mol


def molecule(item, name: str = "") -> RawGraph:
    """Atoms as nodes, each bond as two edges; columns as in ATOMS and BONDS. item: SMILES or Mol.

    Nothing depends on the order in which the atoms are written: chirality is R or S, not the clockwise tag, which
    turns with the order of the neighbours. Bonds keep the order of the Mol, the two directions side by side.
    """
    mol = parse(item, name) if isinstance(item, str) else _prepared(item)
    rings = mol.GetRingInfo()
    atoms = [_atom(atom, rings) for atom in mol.GetAtoms()]
    bonds = [_bond(bond, rings) for bond in mol.GetBonds()]
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    edge_index = np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2).T  # i -> j, then j -> i
    both = [bond for bond in bonds for _ in range(2)]
    return RawGraph(len(atoms), edge_index, _columns(ATOMS, atoms), _columns(BONDS, both), key=name or "molecule")


def _atom(atom, rings) -> tuple:
    return (atom.GetAtomicNum(), atom.GetDegree(), atom.GetFormalCharge(), atom.GetTotalNumHs(),
            atom.GetHybridization().name, int(atom.GetIsAromatic()), min(rings.MinAtomRingSize(atom.GetIdx()), 9),
            atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else "", atom.GetNumRadicalElectrons())


def _bond(bond, rings) -> tuple:
    return (bond.GetBondType().name, int(bond.GetIsConjugated()), min(rings.MinBondRingSize(bond.GetIdx()), 9),
            bond.GetStereo().name)


def _columns(names, rows: list[tuple]) -> dict[str, list]:
    columns = zip(*rows) if rows else [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns)}


def _prepared(mol):
    """A copy with valences, rings and stereo worked out, as parsing a SMILES leaves them."""
    Chem, rdBase = _rdkit()
    mol = Chem.Mol(mol)
    with rdBase.BlockLogs():
        try:
            Chem.SanitizeMol(mol)
            Chem.AssignStereochemistry(mol, cleanIt=True, force=True)
        except Chem.MolSanitizeException as error:
            raise ZooError(f"invalid molecule: {error}") from error
    return mol


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join(lines[:2]) or type(error).__name__


def _reason(Chem, smiles: str) -> str:
    try:
        mol = Chem.MolFromSmiles(smiles, sanitize=False)
        problems = [] if mol is None else [problem.Message() for problem in Chem.DetectChemistryProblems(mol)]
    except (RuntimeError, ValueError) as error:
        return _first_line(error)
    return problems[0].rstrip() if problems else "not SMILES (brackets, ring numbers or symbols do not fit)"
